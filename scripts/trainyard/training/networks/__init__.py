"""Models, and what is done to them: pretrained weights, freezing, normalization statistics, averages."""
