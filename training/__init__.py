"""From flags to a trained model: configuration, data, the compiled step, the loop, checkpoints, metrics."""
