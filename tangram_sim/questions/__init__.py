"""Questions: one frozen dataclass per verb. Options, forms, files and schemas derive from fields."""
