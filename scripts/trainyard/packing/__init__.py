"""Running trials on the slots of a job: driver, queue, workers, failures, live view."""
