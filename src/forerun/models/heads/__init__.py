"""Drafting heads on disk: EAGLE-1/2, EAGLE-3, Medusa and Hydra, in the layouts that their authors, vLLM and
speculators write. A folder is read here; that a head fits a target is checked here too."""

from forerun.models.heads.head import Head
from forerun.models.heads.opening import find_head, is_head, open_head

__all__ = ["Head", "find_head", "is_head", "open_head"]
