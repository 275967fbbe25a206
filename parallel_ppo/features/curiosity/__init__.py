"""What curiosity rewards and what its predictors learn from: pure functions and torch modules."""
