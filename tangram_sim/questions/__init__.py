"""Questions: one frozen dataclass a verb. Faces, files and schemas are derived from their fields."""
