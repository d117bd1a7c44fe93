import pytest
import torch
from torch import nn

import attnkit
from attnkit import ConfigurationError
from attnkit.embedding.patch import Patch


@pytest.mark.parametrize(("shape", "patch_size"), [([1, 28, 28], 7), ([3, 8, 12], 4), ([3, 6, 4], 1)])
def test_patches_equal_a_strided_convolution(shape: list[int], patch_size: int, seed: int) -> None:
    embedding = Patch(d_model=5, image_shape=shape, patch_size=patch_size, class_token=False).double()
    nn.init.normal_(embedding.projection.bias)
    convolution = nn.Conv2d(shape[0], 5, patch_size, stride=patch_size, dtype=torch.float64)
    convolution.weight.data = embedding.projection.weight.data.view_as(convolution.weight)
    convolution.bias.data = embedding.projection.bias.data
    images = torch.randn(2, *shape, dtype=torch.float64)
    torch.testing.assert_close(embedding(images), convolution(images).flatten(2).mT)


def test_the_class_token_comes_first_and_is_the_same_for_every_image(seed: int) -> None:
    plain, embedding = (Patch(d_model=6, image_shape=[2, 4, 6], patch_size=2, class_token=c) for c in (False, True))
    nn.init.normal_(embedding.class_token)
    embedding.projection.load_state_dict(plain.projection.state_dict())
    images = torch.randn(3, 2, 4, 6)
    x = embedding(images)
    assert x.shape == (3, 1 + 2 * 3, 6)
    assert torch.equal(x[:, 0], embedding.class_token.expand(3, -1))
    assert torch.equal(x[:, 1:], plain(images))
    assert (embedding.has_class_token, plain.has_class_token) == (True, False)
    assert plain.class_token is None
    assert embedding.weight is None


@pytest.mark.parametrize("class_token", [False, True])
def test_registers_come_between_the_class_token_and_the_patches(class_token: bool, seed: int) -> None:
    embedding = Patch(d_model=6, image_shape=[2, 4, 6], patch_size=2, class_token=class_token, registers=3, bias=False)
    images = torch.randn(2, 2, 4, 6)
    x = embedding(images)
    assert x.shape == (2, class_token + 3 + 2 * 3, 6)
    assert torch.equal(x[:, class_token : class_token + 3], embedding.registers.expand(2, -1, -1))
    assert 0.005 < embedding.registers.std() < 0.05
    assert embedding.projection.bias is None
    patches = Patch(d_model=6, image_shape=[2, 4, 6], patch_size=2, class_token=False, bias=False)
    patches.load_state_dict(embedding.state_dict(), strict=False)
    assert torch.equal(x[:, class_token + 3 :], patches(images))
    with pytest.raises(ValueError, match="registers must be at least 0, but is -1"):
        Patch(d_model=4, image_shape=[1, 4, 4], patch_size=2, registers=-1)


def test_only_the_projection_is_a_muon_matrix_and_decays() -> None:
    from attnkit.task.parameters import parameter_groups

    embedding = Patch(d_model=6, image_shape=[1, 4, 4], patch_size=2, registers=2)
    matrices, others = parameter_groups(embedding)
    assert (matrices["matrices"], others["matrices"], others["weight_decay"]) == (True, False, 0.0)
    assert [id(p) for p in matrices["params"]] == [id(embedding.projection.weight)]


def test_image_sizes_that_are_not_multiples_of_the_patch_size_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="patch_size 5 does not divide images of 12 x 8; use one of 1, 2, 4, or resize"):
        attnkit.embeddings.build({"name": "patch", "patch_size": 5}, d_model=4, image_shape=[1, 12, 8])
    with pytest.raises(ValueError, match="patch_size must be positive"):
        Patch(d_model=4, image_shape=[1, 4, 4], patch_size=0)


def test_text_and_images_of_another_shape_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="reads images, but image_shape is missing"):
        attnkit.embeddings.build("patch", vocab_size=9, d_model=4)
    embedding = Patch(d_model=4, image_shape=[1, 4, 4], patch_size=2)
    with pytest.raises(ConfigurationError, match=r"the model reads images of shape \[1, 4, 4\], but these have \[3, 4, 4\]"):
        embedding(torch.randn(2, 3, 4, 4))
    with pytest.raises(ConfigurationError, match="no segments"):
        embedding(torch.randn(2, 1, 4, 4), torch.zeros(2, 5, dtype=torch.long))
