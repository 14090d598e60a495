"""Model-aware difficulty: problems are made harder only where the base model solves them (Axion 1.0, stage I)."""
