"""The decode loop and its laws. Sees token ids, trees and counts; never a model, a logit or a text."""
