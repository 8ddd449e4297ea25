"""How an agent answers: turns, the conversation behind them, and the calls to its model."""
