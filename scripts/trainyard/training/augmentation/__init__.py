"""Random augmentation of the training images, on the device."""
