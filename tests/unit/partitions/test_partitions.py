"""Every kind of input gives the same rows; partitions are predicted, adapted to, and opened by other tools."""

from __future__ import annotations

import csv
import io
import json
import re
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from partition_jobs import MODEL, contents, image_files, write_shards
from toys import write_images

import captune
from captune.cli import main
from captune.core.errors import CaptuneError, InputError
from captune.data.inputs import collect_images
from captune.data.partition_folder import PartitionFolder, read_embeddings
from captune.partitions.job import Job, run_job, summarize
from captune.partitions.job import write_shards as write_shards_of

arrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
FILES = image_files(20)


def embed(source: str | Path, out: str | Path, **facts: Any) -> dict[str, Any]:
    return run_job(
        Job("embed", str(source), MODEL, accelerator="cpu", **{"partition_size": 8} | facts), str(out), quiet=True
    )


def rows(out: str | Path) -> dict[str, tuple[str, bytes]]:
    """Return the digest of every image, whether it was used, and its embedding."""
    folder, found = PartitionFolder(out), {}
    for number in range(len(folder.plan()["partitions"])):
        table = folder.read_table(number).to_pylist()
        found |= {row["digest"] or row["path"]: (row["status"], str(row["embedding"])) for row in table}
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("input") / "photos"
    (found / "deep").mkdir(parents=True)
    for i, (name, content) in enumerate(FILES.items()):
        (found / ("deep" if i % 2 else ".") / name).write_bytes(content)
    return found


@pytest.fixture(scope="module")
def embedded(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("embedded") / "out"
    assert embed(folder, out)["computed"] == 3
    return out


def remote(name: str, files: dict[str, bytes]) -> str:
    import fsspec

    store = fsspec.filesystem("memory")
    for file, content in files.items():
        store.pipe_file(f"/{name}/{file}", content)
    return f"memory://{name}"


def bytes_table(path: Path, **options: Any) -> Path:
    images = [{"bytes": content, "path": name} for name, content in FILES.items()]
    parquet.write_table(arrow.table({"image": images, "label": list(range(20))}), path, **options)
    return path


def listed(path: Path, folder: Path, header: str = "") -> Path:
    names = [str(file.relative_to(folder.parent)) for file in sorted(folder.rglob("*.png"))]
    (folder.parent / path).write_text(header + "".join(f"{name}\n" for name in names), encoding="utf-8")
    return folder.parent / path


def path_table(folder: Path) -> Path:
    parquet.write_table(
        arrow.table({"path": [str(file) for file in folder.rglob("*.png")]}), folder.parent / "p.parquet"
    )
    return folder.parent / "p.parquet"


def store_table(tmp_path: Path) -> str:
    return remote("tables", {"a.parquet": bytes_table(tmp_path / "a.parquet").read_bytes()}) + "/*.parquet"


def store_shards(tmp_path: Path) -> str:
    shards = write_shards(tmp_path / "for-store", FILES)
    return remote("shards", {path.name: path.read_bytes() for path in shards.iterdir()})


SOURCES: dict[str, Callable[[Path, Path], Any]] = {
    "shards": lambda folder, tmp: write_shards(tmp / "shards", FILES),
    "pattern of shards": lambda folder, tmp: write_shards(tmp / "more", FILES) / "*.tar",
    "list": lambda folder, tmp: listed(Path("list.txt"), folder),
    "manifest": lambda folder, tmp: listed(Path("list.csv"), folder, "path\n"),
    "table of paths": lambda folder, tmp: path_table(folder),
    "table of bytes": lambda folder, tmp: bytes_table(tmp / "a.parquet", row_group_size=3),
    "files in a store": lambda folder, tmp: remote("files", FILES),
    "shards in a store": lambda folder, tmp: store_shards(tmp),
    "tables in a store": lambda folder, tmp: store_table(tmp),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_every_input_gives_the_rows_of_the_folder(kind: str, folder: Path, embedded: Path, tmp_path: Path) -> None:
    source = SOURCES[kind](folder, tmp_path)
    # One image at a time, because the last bits of an embedding depend on its batch.
    expected = embed(folder, tmp_path / "expected", batch_size=1)
    out = f"memory://out-{tmp_path.name}" if "store" in kind else tmp_path / "out"
    assert embed(source, out, batch_size=1)["images"] == expected["images"] == 20
    assert rows(out) == rows(tmp_path / "expected")
    assert embed(source, out, batch_size=1)["computed"] == 0


def test_the_time_left_is_told_from_the_first_partitions(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    job = Job("embed", str(folder), MODEL, accelerator="cpu", partition_size=8)
    run_job(job, str(tmp_path / "out"), workers=1)
    told = " ".join("".join(capfd.readouterr()).split())
    assert re.search(r"1 of 3 partitions, [\d,]+ images/s, .+ left on 1 worker\.", told)
    (tmp_path / "out" / "_part-000001.json").unlink()
    facts = summarize(PartitionFolder(tmp_path / "out"))
    assert facts["worker_seconds_left"] == pytest.approx(facts["worker_seconds"] / 2, abs=0.2)


def test_what_cannot_be_read_is_a_row_with_its_reason(tmp_path: Path) -> None:
    write_images(tmp_path / "photos", 3)
    (tmp_path / "photos" / "bad.png").write_bytes(b"no image")
    assert embed(tmp_path / "photos", tmp_path / "out")["skipped"] == 1
    (row,) = (row for row in PartitionFolder(tmp_path / "out").read_table(0).to_pylist() if row["status"] == "skipped")
    assert (row["embedding"], row["digest"]) == (None, None)
    assert row["path"].endswith("bad.png")
    assert row["reason"]
    assert len(read_embeddings(PartitionFolder(tmp_path / "out"), 0)[1]) == 3


@pytest.mark.parametrize("change", [{"partition_size": 9}, {"batch_size": 3}, {"precision": "bf16-mixed"}])
def test_another_job_does_not_use_the_same_folder(change: dict[str, Any], folder: Path, embedded: Path) -> None:
    with pytest.raises(InputError, match="another --out"):
        embed(folder, embedded, **change)


def test_changed_weights_are_noticed(folder: Path, embedded: Path, tmp_path: Path) -> None:
    embed(folder, tmp_path / "out")
    (tmp_path / "out" / "_model.json").write_text(json.dumps({"fingerprint": "of other weights"}), encoding="utf-8")
    (tmp_path / "out" / "_part-000000.json").unlink()
    with pytest.raises(CaptuneError, match="weights"):
        embed(folder, tmp_path / "out")


@pytest.mark.parametrize("source", ["nowhere", "memory://nowhere", "unheard-of://x", "empty"])
def test_inputs_that_are_not_there(source: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(CaptuneError, match=source.rsplit("/", maxsplit=1)[-1]):
        embed(source if "://" in source else tmp_path / source, tmp_path / "out")


@pytest.fixture(scope="module")
def run_folder(embedded: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "run"
    options = ["--classes", "stripes,dots,checks", "--method", "transductive", "--quiet", "--out", str(out)]
    assert main(["adapt", "--embeddings", str(embedded), *options]) == 0
    return out


def test_a_run_is_adapted_to_partitions_and_predicts_them(
    run_folder: Path, folder: Path, embedded: Path, tmp_path: Path
) -> None:
    card = json.loads((run_folder / "run.json").read_text(encoding="utf-8"))
    assert card["settings"]["backbone"] == MODEL  # noted in the plan
    by_image, by_embedding = tmp_path / "images", tmp_path / "embeddings"
    options = ["--processes", "1", "--top-k", "2", "--quiet", "--out"]
    assert main(["predict", str(run_folder), str(folder), "--partition-size", "8", *options, str(by_image)]) == 0
    assert main(["predict", str(run_folder), str(embedded), *options, str(by_embedding)]) == 0
    classifier, kept = captune.load(run_folder), dict(csv_rows(run_folder / "predictions.csv"))
    for out in (by_image, by_embedding):
        table = arrow.concat_tables([PartitionFolder(out).read_table(number) for number in range(3)]).to_pylist()
        expected = classifier.predict_proba([row["path"] for row in table])
        assert [row["label"] for row in table] == [classifier.names[c] for c in expected.argmax(axis=1)]
        assert np.allclose([row["confidence"] for row in table], expected.max(axis=1), atol=1e-5)
        assert all(row["labels"][0] == row["label"] and len(row["confidences"]) == 2 for row in table)
        fits = np.asarray([row["fits"] for row in table])  # of images of the run, among which they have a rank
        assert (fits > 0).all()
        assert (fits < 1).all()
        assert np.corrcoef(fits, [float(kept[row["path"]]) for row in table])[0, 1] > 0.7


def csv_rows(path: Path) -> list[tuple[str, str]]:
    with path.open(encoding="utf-8") as file:
        return [(row["path"], row["fits"]) for row in csv.DictReader(file)]


def test_embeddings_of_another_model_are_refused(run_folder: Path, embedded: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for path in embedded.glob("*.*"):
        (other / path.name).write_bytes(path.read_bytes())
    (other / "_model.json").write_text('{"fingerprint": "0"}', encoding="utf-8")
    with pytest.raises(InputError, match="another model"):
        run_job(Job("predict", str(other), str(run_folder), accelerator="cpu"), str(tmp_path / "out"), quiet=True)


def test_a_large_folder_is_sampled(embedded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = collect_images(str(embedded))
    assert (len(whole), whole.unused) == (20, "")
    monkeypatch.setattr("captune.data.partition_folder.MOST_ROWS", 7)
    sample = collect_images(str(embedded))
    assert len(sample) == 7
    assert "13 of 20" in sample.unused
    vectors = dict(zip(whole.files, whole.vectors, strict=True))  # type: ignore[attr-defined]
    assert all(np.array_equal(vectors[name], row) for name, row in zip(sample.files, sample.vectors, strict=True))  # type: ignore[attr-defined]


def test_unfinished_partitions_are_not_adapted_to(embedded: Path, tmp_path: Path) -> None:
    (tmp_path / "_partitions.json").write_bytes((embedded / "_partitions.json").read_bytes())
    with pytest.raises(InputError, match="not finished"):
        collect_images(str(tmp_path))


def test_partitions_open_in_other_tools_by_one_line(embedded: Path) -> None:
    pandas = pytest.importorskip("pandas")
    assert len(pandas.read_parquet(embedded)) == 20
    duckdb = pytest.importorskip("duckdb")
    assert duckdb.sql(f"SELECT count(*) FROM '{embedded}/*.parquet' WHERE status = 'ok'").fetchall() == [(20,)]


def test_partitions_open_in_datasets_and_lancedb(embedded: Path, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    files, cache = f"{embedded}/*.parquet", str(tmp_path / "cache")
    assert len(datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=cache)) == 20
    lancedb = pytest.importorskip("lancedb")
    table = lancedb.connect(tmp_path / "db").create_table("images", arrow.dataset.dataset(embedded, format="parquet"))
    assert table.count_rows() == 20


def test_partitions_are_written_as_webdataset_shards(embedded: Path, tmp_path: Path) -> None:
    shards = write_shards_of(str(embedded), tmp_path / "shards")
    paths, vectors = read_embeddings(PartitionFolder(embedded), 0)
    with tarfile.open(shards[0]) as tar:
        found = {name: tar.extractfile(name).read() for name in tar.getnames()}  # type: ignore[union-attr]
    assert json.loads(found["000000-000003.json"])["path"] == paths[3]
    assert np.array_equal(np.load(io.BytesIO(found["000000-000003.npy"])), vectors[3])
    webdataset = pytest.importorskip("webdataset")
    samples = list(webdataset.WebDataset([str(path) for path in shards], shardshuffle=False).decode())
    assert len(samples) == 20
    assert np.array_equal(samples[3]["npy"], vectors[3])


def test_webdataset_shards_with_labels_are_read(tmp_path: Path) -> None:
    files = {f"{name.split('.')[0]}.cls": b"3" for name in FILES}
    assert embed(write_shards(tmp_path / "shards", FILES | files), tmp_path / "out")["images"] == 20


def test_bytes_of_partitions_do_not_depend_on_the_folder(folder: Path, embedded: Path, tmp_path: Path) -> None:
    embed(folder, tmp_path / "again")
    assert contents(tmp_path / "again") == contents(embedded)
