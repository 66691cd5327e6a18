"""The bundled specs: one layer, block or model in each `.arch` file beside this one."""
