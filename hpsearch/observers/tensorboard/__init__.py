"""TensorBoard: event files of a study, views of several studies, and the TensorBoard server."""
