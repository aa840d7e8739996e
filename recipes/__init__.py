"""The recipes: data only (YAML), shipped with the package."""
