"""Reading text and token ids, and what is wrong with them."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from meshes.errors import UsageError
from training.data import ByteTokenizer, load, save_tokens, split
from training.data import corpus as corpus_module

BOS = ByteTokenizer.separator


# Reading text.


def test_standard_library_is_text_everywhere() -> None:
    whole = load()
    assert len(whole) > 1_000_000 and whole.vocab_size == 257 and not whole.notes
    assert (whole.tokens[whole.starts] == BOS).all() and (whole.tokens == BOS).sum() == len(whole.starts)
    assert whole.tokenizer is not None and "import" in whole.tokenizer.decode(whole.tokens[:20_000])
    assert whole.fingerprint() == load().fingerprint()


def test_a_directory_is_a_document_for_each_file(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("bb")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "z.txt").write_bytes(b"\xff\x00")
    (tmp_path / "a.txt").write_text("aaa")
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / ".hidden").write_text("x")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "y").write_text("y")
    (tmp_path / "ids.bin").write_bytes(b"1234")
    os.mkfifo(tmp_path / "pipe")
    whole = load(tmp_path)
    assert whole.tokens.tolist() == [BOS, 97, 97, 97, BOS, 98, 98, BOS, 255, 0]
    assert whole.starts.tolist() == [0, 4, 7]
    (note,) = whole.notes
    for count in ("1 hidden directories", "1 hidden files", "1 empty files", "1 files of token ids", "1 irregular"):
        assert count in note


def test_a_text_file_is_one_document(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_bytes("aé".encode())
    whole = load(tmp_path / "t.txt", vocab_size=300)
    assert whole.tokens.tolist() == [BOS, 97, 0xC3, 0xA9] and whole.vocab_size == 300


# Reading ids.


@pytest.mark.parametrize(("vocab_size", "dtype"), [(256, "uint8"), (257, "uint16"), (70_000, "uint32")])
def test_ids_round_trip(tmp_path: Path, vocab_size: int, dtype: str) -> None:
    ids = np.random.default_rng(0).integers(0, vocab_size, 500)
    ids[3], ids[7] = vocab_size - 1, 5
    save_tokens(tmp_path / "x.bin", ids, vocab_size, separator=5)
    whole = load(tmp_path / "x.bin")
    assert (whole.tokens == ids).all() and whole.tokens.dtype == dtype and whole.vocab_size == vocab_size
    assert whole.starts.tolist() == sorted({0, *np.flatnonzero(ids == 5).tolist()})
    with pytest.raises(UsageError, match=rf"id {vocab_size} at position 1 is outside 0 to {vocab_size - 1}"):
        save_tokens(tmp_path / "y.bin", np.array([0, vocab_size]), vocab_size)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int64", ">u2", ">i4"])
def test_npy_says_its_own_type(tmp_path: Path, dtype: str) -> None:
    ids = np.arange(200)
    np.save(tmp_path / "x.npy", ids.astype(dtype))
    whole = load(tmp_path / "x.npy", vocab_size=200)
    assert (whole.tokens == ids).all() and isinstance(whole.tokens, np.memmap)
    assert split(whole, 8)[0].take([1]).inputs_BS.tolist() == [list(range(8, 16))]


def test_ids_are_checked_in_every_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_module, "CHUNK", 16)
    ids = np.zeros(100, np.uint16)
    ids[::10] = 9
    np.save(tmp_path / "x.npy", ids)
    (tmp_path / "x.json").write_text('{"separator": 9}')
    assert load(tmp_path / "x.npy", vocab_size=10).starts.tolist() == list(range(0, 100, 10))
    ids[77] = 10
    np.save(tmp_path / "x.npy", ids)
    with pytest.raises(UsageError, match=r"x\.npy: id 10 at position 77 is outside the vocabulary of 10 \(0 to 9\)"):
        load(tmp_path / "x.npy", vocab_size=10)


def npy(array: np.ndarray) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        with path.open("wb") as file:
            np.save(file, array)

    return write


def raw(data: bytes, beside: str | None = None) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_bytes(data)
        if beside is not None:
            path.with_suffix(".json").write_text(beside)

    return write


def cut_npy(path: Path) -> None:
    npy(np.arange(100))(path)
    path.write_bytes(path.read_bytes()[:-50])


def archive(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, a=np.arange(3))


NO_FILE: Callable[[Path], None] = lambda path: None  # noqa: E731
WORDS = np.arange(1, 101, dtype="<u4").tobytes()

BAD = [
    ("x.txt", NO_FILE, {}, "x.txt: no such file"),
    ("x.txt", raw(b""), {}, "x.txt is empty"),
    ("x.txt", raw(b"a"), {"token_dtype": "uint16"}, "--token-dtype uint16 is for .npy and .bin"),
    ("x.txt", raw(b"a"), {"vocab_size": 256}, "--vocab-size 256 is too small for text, which has 257 ids"),
    ("x", lambda path: path.mkdir(), {}, "x has no text files: give"),
    ("x", lambda path: os.mkfifo(path), {}, "x is neither a file nor a directory"),
    ("x.npy", raw(b""), {"vocab_size": 9}, "x.npy is empty: it has 0 bytes"),
    ("x.npy", npy(np.zeros(0, np.uint16)), {"vocab_size": 9}, "x.npy is"),
    ("x.npy", raw(b"not numpy"), {"vocab_size": 9}, "x.npy is not a .npy file of integers"),
    ("x.npy", cut_npy, {"vocab_size": 100}, "x.npy is not a .npy file of integers"),
    ("x.npy", archive, {"vocab_size": 9}, "x.npy is not a .npy file of integers: the magic string"),
    ("x.npy", npy(np.zeros(4)), {"vocab_size": 9}, "x.npy has dtype float64; token ids are integers"),
    ("x.npy", npy(np.zeros(4, bool)), {"vocab_size": 9}, "x.npy has dtype bool"),
    ("x.npy", npy(np.zeros((2, 2), int)), {"vocab_size": 9}, r"x.npy has shape \(2, 2\).*reshape"),
    ("x.npy", npy(np.array([3, -2])), {"vocab_size": 9}, r"x.npy: id -2 at position 1 is outside the vocabulary of 9"),
    ("x.npy", npy(np.array([3, 9])), {"vocab_size": 9}, r"id 9 at position 1 is outside .* of 9 \(0 to 8\)"),
    ("x.npy", npy(np.array([2**64 - 1], np.uint64)), {"vocab_size": 9}, "id 18446744073709551615 at position 0"),
    ("x.npy", npy(np.arange(3)), {}, "x.npy holds token ids: give --vocab-size"),
    ("x.npy", npy(np.arange(3)), {"vocab_size": 9, "token_dtype": "uint16"}, "uint16, but .*x.npy has dtype int64"),
    ("x.npy", npy(np.arange(3).astype("u2")), {"vocab_size": 70000}, "uint16 holds ids up to 65535, too few .* 70000"),
    ("x.bin", raw(b""), {"vocab_size": 9, "token_dtype": "uint16"}, "x.bin is empty"),
    ("x.bin", raw(b"12"), {"vocab_size": 9}, "does not say how ids are stored: give --token-dtype"),
    ("x.bin", raw(b"123"), {"vocab_size": 9, "token_dtype": "uint16"}, "x.bin has 3 bytes, not a multiple of 2"),
    ("x.bin", raw(b"12"), {"token_dtype": "uint16"}, "x.bin holds token ids: give --vocab-size"),
    ("x.bin", raw(b"12"), {"vocab_size": 65537, "token_dtype": "uint16"}, "uint16 holds ids up to 65535"),
    ("x.bin", raw(WORDS), {"vocab_size": 101, "token_dtype": "uint16"}, "every second id is 0 .* uint32: give"),
    ("x.bin", raw(b"12", '{"dtype": "uint8"}'), {"vocab_size": 99, "token_dtype": "uint16"}, "says dtype uint8"),
    ("x.bin", raw(b"12", '{"vocab_size": 99}'), {"vocab_size": 98, "token_dtype": "uint8"}, "says vocab_size 99"),
    ("x.bin", raw(b"12", '{"dtype": "f4"}'), {"vocab_size": 99}, "dtype 'f4': expected one of uint8"),
    ("x.bin", raw(b"12", '{"vocab_size": -1}'), {"token_dtype": "uint8"}, "vocab_size -1: expected a whole number"),
    ("x.bin", raw(b"12", '{"vocab": 9}'), {"token_dtype": "uint8"}, "x.json must be an object with dtype"),
    ("x.bin", raw(b"12", "[]"), {"token_dtype": "uint8"}, "x.json must be an object"),
    ("x.bin", raw(b"12", "{"), {"token_dtype": "uint8"}, "x.json, which describes .*x.bin, is not readable JSON"),
    ("x.bin", raw(b"12", '{"dtype": "uint8", "separator": 99}'), {"vocab_size": 99}, "separator 99 is outside"),
]


@pytest.mark.parametrize(("name", "write", "said", "message"), BAD)
def test_bad_data(
    tmp_path: Path, name: str, write: Callable[[Path], None], said: dict[str, int | str], message: str
) -> None:
    write(tmp_path / name)
    with pytest.raises(UsageError, match=message) as caught:
        load(tmp_path / name, **said)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_alternating_zeros_are_accepted_where_the_type_is_written_down(tmp_path: Path) -> None:
    raw(WORDS, '{"dtype": "uint16", "vocab_size": 101}')(tmp_path / "x.bin")
    assert len(load(tmp_path / "x.bin")) == 200
