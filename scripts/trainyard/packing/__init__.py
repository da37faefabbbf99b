"""Running trials on the slots of a job: driver, queue, slots and their workers, failures, live view."""
