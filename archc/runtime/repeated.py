"""Calls of functions that launch kernels, and launches, done again as they were for tensors like
those of that time: what is done follows from shapes, strides, dtypes and numbers alone. Streams are
those at the time of the call: launches and room ask for them then."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils.weak import WeakIdKeyDictionary

NUMBERS = frozenset((bool, int, float, type(None)))
"""The types of what is given to a call besides tensors."""


PLAIN = frozenset((Tensor, torch.nn.Parameter))
"""The types of tensors that are nothing else."""


def likeness(given: tuple, learns: bool = False) -> tuple[tuple | None, list]:
    """The key that decides what a call or a launch does, and the addresses of what is given to it;
    the key is None where it is not enough: of tensors that are not on the current GPU, or not
    plain, and where it `learns`, of those that ask for a gradient."""
    if not torch.cuda.is_initialized():
        return None, []
    here, learns = torch.cuda.current_device(), learns and torch.is_grad_enabled()
    key: list[Any] = [here, Recording.settings]
    addresses = []
    for x in given:
        kind = x.__class__
        if kind in PLAIN:
            if x.get_device() != here or (learns and x.requires_grad):
                return None, []
            at = x.data_ptr()
            addresses.append(at)
            key += x.shape, x.stride(), x.dtype, at % 16
        elif kind in NUMBERS:
            addresses.append(None)
            key += kind, x.hex() if kind is float else x  # -0.0 is no 0.0
        else:
            return None, []
    return tuple(key), addresses


def unwatched(given: Iterable) -> bool:
    """Whether autograd at most looks at what is done with these: no compiler, tracer, transform of
    torch.func, forward mode or mode of dispatch does, and no tensor is of a kind of its own, has a
    shape alone, or stands for its negative or for zeros that are nowhere."""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        return False
    if torch._C._are_functorch_transforms_active() or torch._C._get_tracing_state() is not None:
        return False
    if torch.autograd.forward_ad._current_level >= 0:
        return False
    for x in given:
        if x.__class__ in PLAIN:
            if x.is_neg() or x.is_meta or x._is_zerotensor():
                return False
        elif isinstance(x, Tensor):
            return False
    return True


def learns(given: Iterable) -> bool:
    """Whether autograd is to know what is made of these."""
    if torch.is_grad_enabled():
        for x in given:
            if isinstance(x, Tensor) and x.requires_grad:
                return True
    return False


ROOM = torch.ops.aten.empty.memory_format
"""What `torch.empty` is as an operation."""

ROOM_LIKE = torch.ops.aten.new_empty.default
"""What `new_empty` is."""

VIEW = torch.ops.aten.view.default
"""What `view` is."""


HERE = threading.local()
"""What this thread is doing."""


def recording_now() -> Any:
    """What records the calls of this thread, a `Recording`."""
    return getattr(HERE, "now", None)


class Place(int):
    """Where a tensor is among those of a call: first those given, then those that it makes."""


class Recording(TorchDispatchMode):
    """What one call does, in order: its launches, and what PyTorch does, which may be to give room.
    It is not `sure` where that cannot be done again: where a number is read from a tensor or drawn,
    or a tensor is neither given nor made. `numbers` are those that the last op in it is given; None
    without an op."""

    settings = 0
    UNSURE = frozenset((
        torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape,
        torch.Tag.nondeterministic_seeded,
    ))  # fmt: skip

    def __init__(self, given: tuple):
        super().__init__()
        self.places, self.given, self.count = WeakIdKeyDictionary(), len(given), len(given)
        self.steps: list[Any] = []
        self.sure = True
        self.numbers: tuple | None = None
        tensors = [(place, x) for place, x in enumerate(given) if isinstance(x, Tensor)]
        self.device = tensors[0][1].device
        for place, x in tensors:  # of one that is given twice nothing says which it is
            self.sure = self.sure and x.is_floating_point() and x not in self.places
            self.places[x] = Place(place)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Not asked to: torch would import its compiler for that, which takes two seconds."""
        return False

    def __enter__(self):
        HERE.now = self
        return super().__enter__()

    def __exit__(self, *raised):
        HERE.now = None
        return super().__exit__(*raised)

    def __torch_dispatch__(self, op: Any, types: Any, args: tuple = (), kwargs: dict | None = None):
        kwargs = kwargs or {}
        taken: Any = self.named([args, kwargs])
        made: Any = op(*args, **kwargs)
        results = [*made] if isinstance(made, (tuple, list)) else [made]
        if not places_in(taken) and not any(isinstance(x, Tensor) for x in results):
            return made  # of dtypes, which are part of the key
        plain = all(isinstance(x, Tensor) and x.device == self.device for x in results)
        self.sure = self.sure and plain and not self.UNSURE.intersection(op.tags)
        same = any(x is made for x in args) and not op._schema.is_mutable
        if op is ROOM or op is ROOM_LIKE:
            (x,), op = results, ROOM
            taken = x.shape, x.dtype, x.nbytes
            self.sure = self.sure and x.is_contiguous()
        elif op is VIEW:
            (x,), taken = results, [taken[0], {}]
            taken[0][1] = x.shape
        if self.sure and not same:  # what is contiguous already is itself
            self.steps.append((op, taken, [self.place_of(x) for x in results]))
        return made

    def place_of(self, x: Tensor) -> Place:
        """The place of a tensor that an operation returns."""
        if x not in self.places:
            self.places[x], self.count = Place(self.count), self.count + 1
        return self.places[x]

    def named(self, x: Any) -> Any:
        """An argument, with places for its tensors."""
        if isinstance(x, (tuple, list)):
            return [self.named(each) for each in x]
        if isinstance(x, dict):
            return {name: self.named(each) for name, each in x.items()}
        if not isinstance(x, Tensor):
            return x
        self.sure = self.sure and x in self.places
        return self.places.get(x)

    def launch(self, launched: tuple | None) -> None:
        """A launch as `launch_kernel` tells it; of one by Triton alone nothing is known."""
        if launched is None:
            self.sure = False
        else:
            self.steps.append((launched[0], self.named(launched[1]), None))

    def repeated(self, results: Any) -> Repeated | None:
        """The call as it can be done again; None where that is not sure, and where it launches
        nothing."""
        made = self.named(results)
        if not self.sure or all(gives is not None for _, _, gives in self.steps):
            return None
        self.fold_views(made)
        last, bytes_of, kept = {}, {}, {*places_in(made)}
        seen = {*kept}
        for number, (what, taken, gives) in enumerate(self.steps):
            last |= dict.fromkeys([*places_in(taken), *(gives or [])], number)
            if what is ROOM:
                bytes_of[gives[0]] = taken[-1]
            elif gives is not None:
                seen.update(places_in(taken))
        inner = {place: size for place, size in bytes_of.items() if place not in seen}
        inner = inner if sum(inner.values()) <= MOST_AT_ONCE else {}
        steps = [(room_of_all(inner, self.device), [])] if inner else []
        for number, (what, taken, gives) in enumerate(self.steps):
            if what is not ROOM or gives[0] not in inner:
                left = [p for p, at in last.items() if at == number and self.given <= p not in kept]
                steps.append((step_of(what, taken, gives, self.device), left))
        return Repeated(steps, self.count - self.given, made, self.numbers)

    def fold_views(self, results: Any) -> None:
        """Leave out views that launches alone take, which are given addresses, and a view that is
        returned of room that launches alone take: the room has its shape."""
        kept, looked = {*places_in(results)}, Counter[Place]()
        for _, taken, gives in self.steps:
            looked.update(places_in(taken) if gives is not None else ())
        rooms = {gives[0]: i for i, (what, _, gives) in enumerate(self.steps) if what is ROOM}
        same, left = dict[Place, Place](), dict(enumerate(self.steps))
        for number, (what, taken, gives) in enumerate(self.steps):
            if what is not VIEW:
                continue
            (of, shape), (place,) = taken[0], gives
            if place not in kept and place not in looked:
                same[place] = of
                del left[number]
            elif of in rooms and of not in kept and looked[of] == 1:
                same[of] = place
                left[rooms[of]] = ROOM, (shape, *self.steps[rooms[of]][1][1:]), [place]
                del left[number]
        self.steps = [
            (what, [same.get(x, x) if x.__class__ is Place else x for x in taken], gives)
            if gives is None else (what, taken, gives)
            for what, taken, gives in left.values()
        ]  # fmt: skip


def places_in(x: Any) -> list[Place]:
    """The places that an argument has."""
    if isinstance(x, dict):
        x = [*x.values()]
    if isinstance(x, list):
        return [place for each in x for place in places_in(each)]
    return [x] if isinstance(x, Place) else []


def with_tensors(x: Any, held: list) -> Any:
    """An argument, with tensors in their places."""
    kind = x.__class__
    if kind is Place:
        return held[x]
    if kind is list:
        return [with_tensors(each, held) for each in x]
    return {name: with_tensors(each, held) for name, each in x.items()} if kind is dict else x


MOST_AT_ONCE = 128 << 20
"""Bytes of what a call makes and gives back for which it asks at once. Of more each is given back
as soon as it can be: work on so many takes longer than to ask."""


def room_of_all(bytes_of: dict, device: torch.device) -> Callable:
    """A step that asks for room for tensors, given by places, which only launches take."""
    ends = [*accumulate(-(-size // 512) * 512 for size in bytes_of.values())]
    begins = [*zip(bytes_of, [0, *ends], strict=False)]

    def rooms(held: list, addresses: list) -> None:
        x = torch.empty(ends[-1], dtype=torch.uint8, device=device)
        held.append(x)
        first = x.data_ptr()
        for place, begin in begins:
            addresses[place] = first + begin

    return rooms


def step_of(what: Any, taken: Any, gives: list | None, device: torch.device) -> Callable:
    """A function of the tensors of a call, and of their addresses, that does one of its steps."""
    if gives is None:
        places = [(i, place) for i, place in enumerate(taken) if isinstance(place, Place)]

        def launch(held: list, addresses: list) -> None:
            arguments = taken.copy()
            for i, place in places:
                arguments[i] = addresses[place]
            what(*arguments)

        return launch
    if what is ROOM:
        (size, dtype, _), (place,) = taken, gives

        def room(held: list, addresses: list) -> None:
            held[place] = x = torch.empty(size, dtype=dtype, device=device)
            addresses[place] = x.data_ptr()

        return room

    args, named = taken
    plain = not places_in([named, *(x for x in args if x.__class__ is list)])
    own = [(i, place) for i, place in enumerate(args) if isinstance(place, Place)]

    def operation(held: list, addresses: list) -> None:
        if plain:
            given = args.copy()
            for i, place in own:
                given[i] = held[place]
            made = what(*given, **named)
        else:
            given, options = with_tensors(taken, held)
            made = what(*given, **options)
        results = made if isinstance(made, (tuple, list)) else (made,)
        for place, x in zip(gives, results, strict=True):
            held[place] = x
            addresses[place] = x.data_ptr()

    return operation


class Repeated:
    """A call of a function that is done again: its steps, each with the places that nothing after
    it reads, how many places there are besides those given, what it returns, and the numbers that
    it gave to the op that it is, None where it is none."""

    def __init__(self, steps: list, more: int, made: Any, numbers: tuple | None):
        self.steps, self.more, self.made, self.numbers = steps, [None] * more, made, numbers

    def __call__(self, given: tuple, addresses: list) -> Any:
        held, addresses = [*given, *self.more], [*addresses, *self.more]
        for step, left in self.steps:
            step(held, addresses)
            for place in left:
                held[place] = None
        made = with_tensors(self.made, held)
        return tuple(made) if made.__class__ is list else made


SEEN = "seen"
"""In place of a call that was done once."""


class Known:
    """The calls of a function that launches kernels. From the third for tensors alike it is done
    again as it was the second time."""

    def __init__(self, function: Callable):
        self.function, self.calls = function, dict[Any, Any]()

    def __call__(self, *given: Any) -> Any:
        if recording_now() is not None:
            return self.function(*given)
        beneath = torch.is_autocast_enabled("cuda")  # which is above what is recorded
        key, addresses = (None, []) if beneath else likeness(given)
        again: Any = self.calls.get(key)
        if again.__class__ is Repeated:
            return again(given, addresses)
        return self.recorded(key, given) if again is SEEN else self.first(key, given)

    def first(self, key: Any, given: tuple) -> Any:
        """What is done once, or has to be done each time."""
        made = self.function(*given)
        if key is not None and key not in self.calls:
            if len(self.calls) == 256:  # there may be any number of tokens
                self.calls.clear()
            self.calls[key] = SEEN
        return made

    def recorded(self, key: Any, given: tuple) -> Any:
        """What can be done again from then on, if that is sure."""
        with Recording(given) as recording:
            made = self.function(*given)
        self.calls[key] = recording.repeated(made)
        return made


def noted(launched: tuple | None) -> tuple | None:
    """What `launch_kernel` returns, of which a recording of this thread is told."""
    recording = recording_now()
    if recording is not None:
        recording.launch(launched)
    return launched


def made_of_numbers(function: Callable, *numbers: Any) -> tuple:
    """The tensors that `function(*numbers)` makes; a recording of this thread calls it again, in
    place of all that it does."""
    recording = recording_now()
    if recording is None:
        return function(*numbers)
    with _disable_current_modes():
        made = function(*numbers)
    recording.steps.append((function, [[*numbers], {}], [recording.place_of(x) for x in made]))
    return made


def launched_again(kernel: Any, given: tuple, *rest: Any) -> list | None:
    """The outputs of a kernel for tensors (or None) `given` to it, if it was launched of others
    like them: nothing else is looked at then, as all of it was right. None if it was not."""
    if torch.compiler.is_compiling():
        return None
    known = getattr(kernel, "known_calls", None)
    if not known:
        return None
    key, addresses = likeness((*given, *rest), True)
    if key not in known:
        return None
    launch, arguments, places, rooms = known[key]
    arguments, made = [*arguments], []
    for place, address in zip(places, addresses, strict=False):
        arguments[place] = address
    for place, shape, dtype, device in rooms:
        room = torch.empty(shape, dtype=dtype, device=device)
        arguments[place] = room.data_ptr()
        made.append(room)
    launch(*arguments)
    return made


def remember_launch(kernel: Any, launched: tuple | None, given: tuple, *rest: Any) -> None:
    """Keep a launch, as `launch_kernel` tells it, for those of tensors like the `given`, which are
    in the order of its arguments: other tensors are what the kernel makes."""
    if launched is None:
        return
    key = likeness((*given, *rest), True)[0]
    if key is None:
        return
    launch, arguments = launched
    arguments, waiting, places, rooms = [*arguments], [*given], [], []
    for place, x in enumerate(arguments):
        if waiting and x is waiting[0]:
            places.append(place)
            del waiting[0]
        elif isinstance(x, Tensor):
            rooms.append((place, x.shape, x.dtype, x.device))
        if isinstance(x, Tensor):
            arguments[place] = None
    if waiting:  # one was copied for the kernel, and would be each time
        return
    known = vars(kernel).setdefault("known_calls", {})
    if len(known) == 1024:  # strides may be of any number of tokens
        known.clear()
    known[key] = launch, arguments, places, rooms
