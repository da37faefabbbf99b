"""Running trials on slots: driver, packer, worker, live view."""
