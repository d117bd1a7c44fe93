import sys
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from samples.framed import framed

from attnkit import ConfigurationError, tasks
from attnkit.corpus.signals import read_each, stored
from attnkit.corpus.sound_reading import log_mel
from attnkit.corpus.tables import BadRows
from attnkit.task.attending import read_batch

STACK = {"name": "encoder_decoder", "d_model": 8, "num_layers": 1, "num_heads": 2}


def write_sound(path: Path, milliseconds: int, *, rate: int = 16000) -> None:
    rng = np.random.default_rng(milliseconds)
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, rate, 0, "NONE", ""))
        file.writeframes(rng.integers(-9999, 9999, size=rate * milliseconds // 1000, dtype=np.int16).tobytes())


@pytest.fixture
def table(tmp_path: Path) -> Path:
    for name, milliseconds in (("a", 125), ("b", 65), ("c", 205)):
        write_sound(tmp_path / f"{name}.wav", milliseconds)
    path = tmp_path / "mine.tsv"
    path.write_text("a.wav\tyes\nb.wav\tno no\nc.wav\tyes no\nb.wav\tno\n", encoding="utf-8")
    return path


def frames_of(path: Path) -> torch.Tensor:
    return read_each([(stored(path), ())], shape=None, bad_rows=BadRows()).arrays[0]


def data_of(table: Path, **arguments: Any) -> Any:
    return framed("signal_text", train=str(table), validation=str(table), test=str(table), **arguments)


def model_of(data: Any, **arguments: Any) -> Any:
    task = tasks.build(
        {
            "name": "seq2seq", "stack": STACK, "src_embedding": {"name": "frames", "stacking": 2}, "max_length": 5,
            "tgt_tokenizer": data.tgt_tokenizer_spec, "src_shape": data.src_shape, **arguments,
        }
    )  # fmt: skip
    task.configure_model()
    return task.eval()


def test_each_transcript_is_a_training_row_and_all_are_references(table: Path) -> None:
    data = data_of(table)
    assert sum(len(batch["src"]) for batch in data.train_dataloader()) == 4
    found = {
        Path(source).name: texts
        for batch in data.test_dataloader()
        for source, texts in zip(batch["source"], batch["references"], strict=True)
    }
    assert found == {"a.wav": ["yes"], "b.wav": ["no no", "no"], "c.wav": ["yes no"]}


def test_features_are_normalised_with_training_statistics(table: Path) -> None:
    batches = list(data_of(table).test_dataloader())
    frames = torch.cat([batch["src"][batch["src_mask"]] for batch in batches])
    assert len(frames) == 11 + 5 + 19
    assert frames.mean(0).abs().max() < 0.3  # one sound counts twice in training
    assert all(not batch["src"][~batch["src_mask"]].any() for batch in batches)


def test_a_sound_gives_the_same_result_alone_and_in_a_batch(table: Path) -> None:
    data = data_of(table, batch_tokens=1000)
    task = model_of(data)
    (batch,) = data.test_dataloader()
    logits = task(batch["src"], batch["tgt"][:, :-1], batch["src_mask"])
    texts = task.decode(batch["src"], batch["src_mask"])
    maps = read_batch(task, batch, 3)
    for i, mask in enumerate(batch["src_mask"]):
        alone = batch["src"][i : i + 1, mask]
        torch.testing.assert_close(task(alone, batch["tgt"][i : i + 1, :-1]), logits[i : i + 1], rtol=0, atol=1e-5)
        assert task.decode(alone) == [texts[i]]
        cross = next(m for m in maps.labelled(maps.maps(), i) if m.kind == "cross")
        assert cross.keys == [str(n) for n in range(1, -(-int(mask.sum()) // 2) + 1)]
        torch.testing.assert_close(cross.weights.sum(-1), torch.ones(cross.weights.shape[:2]))


@pytest.mark.parametrize("rate", [22050, 32000, 44100, 48000, 96000])
def test_features_do_not_depend_on_the_sampling_rate(rate: int) -> None:
    rng = np.random.default_rng(0)
    frequencies, phases = rng.uniform(50, 7900, 2000), rng.uniform(0, 6, 2000)

    def frames(rate: int) -> torch.Tensor:
        time = np.arange(rate // 5) / rate
        return log_mel(torch.from_numpy(np.sin(2 * np.pi * np.outer(time, frequencies) + phases).mean(1)), rate=rate)

    found, expected = frames(rate), frames(16000)
    assert found.shape == expected.shape
    assert (found - expected).mean().abs() < 0.01
    assert (found - expected).std() < 0.1  # of frames that begin at other samples


def test_a_checkpoint_with_rate_dependent_features_warns(table: Path) -> None:
    data = data_of(table)
    before = {key: value for key, value in data.state_dict().items() if key != "reference_rate"}
    with pytest.warns(UserWarning, match="depended on the sampling rate"):
        data_of(table).load_state_dict(before)


def test_a_truncated_sound_is_rejected_but_not_one_of_unknown_length(tmp_path: Path) -> None:
    write_sound(tmp_path / "a.wav", 100)
    whole = (tmp_path / "a.wav").read_bytes()
    (tmp_path / "half.wav").write_bytes(whole[:1644])
    with pytest.raises(ConfigurationError, match=r"half\.wav: it is truncated: 1,600 of the 3,200 bytes of its sound are missing"):
        frames_of(tmp_path / "half.wav")
    for claimed in (0x7FFFF000, 0xFFFFFFFF):
        (tmp_path / "piped.wav").write_bytes(whole[:40] + claimed.to_bytes(4, "little") + whole[44:])
        assert torch.equal(frames_of(tmp_path / "piped.wav"), frames_of(tmp_path / "a.wav"))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_sound_with_a_sample_that_is_no_number_is_rejected(value: float, tmp_path: Path) -> None:
    """Otherwise the normalisation of all sounds, and so every input, would be NaN."""
    samples = np.zeros(1600)
    samples[9] = value
    pytest.importorskip("soundfile").write(tmp_path / "a.wav", samples, 16000, subtype="FLOAT")
    with pytest.raises(ConfigurationError, match=r"a\.wav: some of its samples are NaN or infinite"):
        frames_of(tmp_path / "a.wav")


@pytest.mark.parametrize(("suffix", "subtype"), [("wav", "PCM_24"), ("wav", "FLOAT"), ("flac", "PCM_16")])
def test_a_sound_in_another_format_has_the_same_features(suffix: str, subtype: str, tmp_path: Path) -> None:
    library = pytest.importorskip("soundfile")
    write_sound(tmp_path / "a.wav", 100)
    samples, rate = library.read(tmp_path / "a.wav")
    library.write(tmp_path / f"b.{suffix}", samples, rate, subtype=subtype)
    assert (tmp_path / f"b.{suffix}").read_bytes() != (tmp_path / "a.wav").read_bytes()
    assert torch.equal(frames_of(tmp_path / f"b.{suffix}"), frames_of(tmp_path / "a.wav"))


def test_a_sound_in_a_lossy_format_has_almost_the_same_features(tmp_path: Path) -> None:
    library = pytest.importorskip("soundfile")
    samples = np.sin(2 * np.pi * 1000 * np.arange(8000) / 16000) / 2
    for name in ("a.wav", "b.mp3", "c.ogg"):
        library.write(tmp_path / name, samples, 16000)
    loudest = [frames_of(tmp_path / name)[10:40].mean(0) for name in ("a.wav", "b.mp3", "c.ogg")]
    band = int(loudest[0].argmax())
    assert all(int(found.argmax()) == band and abs(found[band] - loudest[0][band]) < 0.1 for found in loudest)


def test_without_soundfile_other_formats_are_rejected_with_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "soundfile", None)
    (tmp_path / "a.mp3").write_bytes(b"ID3")
    with pytest.raises(ConfigurationError, match=r"pip install 'attnkit\[sounds\]'\), or convert it, as with: ffmpeg"):
        frames_of(tmp_path / "a.mp3")


def test_sounds_in_subfolders_are_read_and_other_files_are_reported(table: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = data_of(table)
    data.predict = str(tmp_path / "own")
    for name in ("2.wav", "sub/1.wav", ".hidden.wav", "sub/song.mid"):
        (tmp_path / "own" / name).parent.mkdir(parents=True, exist_ok=True)
        write_sound(tmp_path / "own" / name, 50)
    (batch,) = data.predict_dataloader()
    assert [str(Path(name).relative_to(tmp_path / "own")) for name in batch["source"]] == ["2.wav", "sub/1.wav"]
    assert f"predict: 2 sounds; 1 other files ignored, such as {tmp_path / 'own' / 'sub' / 'song.mid'}" in caplog.text


def test_the_prediction_table_uses_the_corpus_columns(table: Path, tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text("id,path,said\n1,b.wav,no\n2,a.wav,yes\n", encoding="utf-8")
    data = data_of(tmp_path / "own.csv", columns=["path", "said"], predict=str(tmp_path / "own.csv"))
    assert [Path(name).name for batch in data.predict_dataloader() for name in batch["source"]] == ["b.wav", "a.wav"]


def test_the_state_restores_vocabulary_shape_and_normalisation(table: Path, tmp_path: Path) -> None:
    data, other = data_of(table), framed("signal_text", predict=str(tmp_path / "b.wav"))
    other.load_state_dict(data.state_dict())
    (batch,) = other.predict_dataloader()
    (expected,) = [b["src"][i][b["src_mask"][i]] for b in data.test_dataloader() for i, s in enumerate(b["source"]) if s.endswith("b.wav")]
    torch.testing.assert_close(batch["src"][0], expected)
    assert "tgt" not in batch


def test_images_whose_shape_does_not_match_the_weights_are_rejected(table: Path) -> None:
    data = data_of(table, image_shape=[1, 4, 8])
    with pytest.raises(ConfigurationError, match=r"data.image_shape: the weights in the checkpoint are for images of shape \[1, 4, 9\]"):
        data.load_state_dict({"src_shape": [1, 4, 9], "mean": [0.0], "std": [1.0]})


def test_a_sound_model_rejects_texts(table: Path) -> None:
    with pytest.raises(ConfigurationError, match="reads images or sound, not texts"):
        model_of(data_of(table)).generate(["yes"])


def test_embeddings_cannot_be_tied_with_a_source_that_is_not_text(table: Path) -> None:
    with pytest.raises(ConfigurationError, match="both sides need the same tokenizer"):
        model_of(data_of(table), tie="all")


def test_bad_sounds_get_one_error(table: Path, tmp_path: Path) -> None:
    for name, content, message in (
        ("gone.wav", None, r"gone\.wav: there is no such file \(looked in "),
        ("text.wav", b"no sound", "damaged, or not a sound"),
        ("half.wav", b"RIFF no sound", "truncated, damaged or not a WAV file"),
        ("empty.wav", b"", "damaged, or not a sound"),
        ("a.txt", b"", "damaged, or not a sound"),
        (f"{300 * 'a'}.wav", None, "there is no such file"),
    ):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        (tmp_path / "bad.tsv").write_text(f"{name}\tyes\n", encoding="utf-8")
        with pytest.raises(ConfigurationError, match=message):
            data_of(tmp_path / "bad.tsv").train_dataloader()
    write_sound(tmp_path / "slow.wav", 100, rate=8000)
    write_sound(tmp_path / "short.wav", 20)
    for name, message in (
        ("slow.wav", "8000 samples per second, .* need 16000 or more"),
        ("short.wav", "less than one frame"),
    ):
        (tmp_path / "bad.tsv").write_text(f"{name}\tyes\n", encoding="utf-8")
        with pytest.raises(ConfigurationError, match=message):
            data_of(tmp_path / "bad.tsv").train_dataloader()


def test_bad_sounds_are_skipped_and_counted_in_every_split_and_in_prediction(
    table: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "text.wav").write_bytes(b"no sound")
    table.write_text("text.wav\tyes\ngone.wav\tyes\na.wav\tyes\nb.wav\tno\n", encoding="utf-8")
    data = data_of(table, on_bad_rows="skip")
    for loader, split in ((data.train_dataloader, "train"), (data.test_dataloader, "test"), (data.predict_dataloader, "predict")):
        assert sum(len(batch["src"]) for batch in loader()) == 2
        (line,) = [line for line in caplog.messages if line.startswith(f"{split}: 2 sounds; ")]
        assert f"2 bad rows skipped, first: {tmp_path}/text.wav: it is damaged, or not a sound" in line
    data.predict = str(tmp_path)
    assert sum(len(batch["src"]) for batch in data.predict_dataloader()) == 3
    table.write_text("text.wav\tyes\n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"none of the images or sounds can be used. .* skipped file: .*text\.wav: it is damaged"):
        data_of(table, on_bad_rows="skip").train_dataloader()


def test_resized_images_with_captions_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pillow = pytest.importorskip("PIL.Image")
    for name, size in (("a.png", (4, 4)), ("b.png", (8, 4)), ("c.png", (4, 8))):
        pillow.fromarray(np.zeros(size, np.uint8)).save(tmp_path / name)
    (tmp_path / "mine.tsv").write_text("a.png\tone\nb.png\ttwo\nc.png\ttwo\n", encoding="utf-8")
    data = data_of(tmp_path / "mine.tsv", image_shape=[1, 4, 4])
    data.train_dataloader()
    assert "train: 3 images; 2 resized to 4 x 4, no unknown tokens" in caplog.text
    data.predict = str(tmp_path)
    data.predict_dataloader()
    assert "predict: 3 images; 2 resized to 4 x 4" in caplog.text
    with pytest.raises(ConfigurationError, match=r"b.png has 8 x 4 pixels, but the first image has 4 x 4; to resize all, set image_shape"):
        data_of(tmp_path / "mine.tsv").train_dataloader()


def test_long_sounds_are_omitted_from_training_only_and_the_budget_is_named(table: Path) -> None:
    data = data_of(table, max_length=11)
    assert sum(len(batch["src"]) for batch in data.train_dataloader()) == 3
    assert sum(len(batch["src"]) for batch in data.test_dataloader()) == 3
    with pytest.raises(ConfigurationError, match="all 4 training rows are longer than max_length=3"):
        data_of(table, max_length=3).train_dataloader()
    with pytest.raises(ConfigurationError, match="19 frames or columns and 4 target tokens, more than batch_tokens=20"):
        data_of(table, batch_tokens=20).train_dataloader()


def test_more_frames_than_learned_positions_get_one_error(table: Path) -> None:
    data = data_of(table)
    task = model_of(data, stack={**STACK, "position": {"name": "learned", "max_length": 6}})
    (batch,) = data.test_dataloader()
    with pytest.raises(ConfigurationError, match="max_length"):
        task(batch["src"], batch["tgt"][:, :-1], batch["src_mask"])


def test_image_captions_are_learned_from_patches(tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image")
    for i in range(3):
        pillow.fromarray(np.full((4, 8), 80 * i, np.uint8)).save(tmp_path / f"{i}.png")
    (tmp_path / "mine.tsv").write_text("".join(f"{i}.png\tgrey {i}\n" for i in range(3)), encoding="utf-8")
    data = data_of(tmp_path / "mine.tsv")
    task = model_of(data, src_embedding={"name": "patch", "patch_size": 2, "class_token": False})
    (batch,) = data.train_dataloader()
    assert batch["src"].shape == (3, 1, 4, 8)
    assert "src_mask" not in batch
    loss = task.objective(batch).loss
    loss.backward()
    assert task.model.source_embedding.projection.weight.grad.abs().sum() > 0
    maps = read_batch(task, batch, 1)
    assert [m.keys for m in maps.labelled(maps.maps()) if m.kind == "cross"] == [[str(n) for n in range(1, 9)]]
    (tmp_path / "wide").mkdir()
    pillow.fromarray(np.zeros((4, 6), np.uint8)).save(tmp_path / "wide" / "a.png")
    data.predict = str(tmp_path / "wide")
    assert next(iter(data.predict_dataloader()))["src"].shape == (1, 1, 4, 8)  # image files are converted


def test_an_unreadable_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    write_sound(tmp_path / "a.wav", 100)
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ConfigurationError, match=r"a\.wav: it cannot be read: Permission denied"):
        frames_of(tmp_path / "a.wav")
