"""Intrinsic rewards and the predictors behind them."""
