"""Studies as TensorBoard reads them: what is written of one, several in one view, and TensorBoard itself on that."""
