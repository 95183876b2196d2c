"""What the documentation site is made with, beyond the pages: references, the drawing of rooms, equations."""
