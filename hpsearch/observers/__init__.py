"""Who watches a sweep: TensorBoard, and the screen."""
