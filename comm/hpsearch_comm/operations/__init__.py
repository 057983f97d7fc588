"""Operations: argument checks, ordering, execution and results."""
