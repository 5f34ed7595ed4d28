"""Encoders and what they are made of: backbones, masks, and the layouts of masked image modelling."""

from clustermim.models.backbones import BACKBONES, Backbone, Positions, build_backbone
from clustermim.models.encoder import Encoder, load_encoder
from clustermim.models.mim import Layout, make_model
from clustermim.models.timm_backbones import TimmBackbone
from clustermim.models.vit import ViT

__all__ = ["BACKBONES", "Backbone", "Encoder", "Layout", "Positions", "TimmBackbone", "ViT"]
__all__ += ["build_backbone", "load_encoder", "make_model"]
