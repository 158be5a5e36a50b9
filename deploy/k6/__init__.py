"""Load scripts for k6, and the driver behind `make load`."""
