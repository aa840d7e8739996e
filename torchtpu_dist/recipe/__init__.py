"""The typed recipe: parse, override, check, explain. Nothing here imports torch.

``load_recipe`` gives the recipe and the origin of every value; ``recipe.check.check`` proves that it can run;
``recipe.report`` shows both.
"""

from torchtpu_dist.recipe.dump import dump_yaml
from torchtpu_dist.recipe.launcher_config import LauncherConfig
from torchtpu_dist.recipe.load import LoadedRecipe, load_recipe, packaged_recipes, parse_recipe
from torchtpu_dist.recipe.recipe import Recipe

__all__ = ["LauncherConfig", "LoadedRecipe", "Recipe", "dump_yaml", "load_recipe", "packaged_recipes", "parse_recipe"]
