"""The errors of port modules as mlx5 logs them."""

# drivers/net/ethernet/mellanox/mlx5/core/events.c, mlx5_pme_error_to_string
HEAT_AND_POWER = (
    "High Temperature",
    "Power budget exceeded",
    "One or more network ports have been powered down due to insufficient/unadvertised power on the PCIe "
    "slot",
)
OF_MODULES = (
    "Long Range for non MLNX cable",
    "Bus stuck (I2C or data shorted)",
    "No EEPROM/retry timeout",
    "Enforce part number list",
    "Unknown identifier",
    "Bad or shorted cable/module",
)
PREFIX = "mlx5_core 0000:18:00.0: port_module:259:(pid 0): "  # mlx5_core.h, mlx5_core_err
