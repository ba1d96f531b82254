"""The engine: arrays and processes. It knows no learning framework and imports none."""
