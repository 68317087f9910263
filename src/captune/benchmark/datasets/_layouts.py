"""Ways that a dataset may lie on disk, tried in order; what was looked for is said when none is there."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from captune.benchmark.datasets.base import Dataset, DatasetFacts, LoadedDataset
from captune.core import registry
from captune.core.errors import InputError
from captune.core.files import is_file, is_folder


@dataclass(frozen=True)
class Layout:
    """One way: the folders that it may be in, the files that must be there, and how they are read."""

    title: str
    folders: tuple[str, ...]
    needs: tuple[str, ...]
    read: Callable[[Path], LoadedDataset]


class LayoutDataset(Dataset):
    """A dataset that is read in the first of its layouts that is found."""

    layouts: ClassVar[tuple[Layout, ...]]

    def is_found(self, root: Path) -> bool:
        """Return whether any layout is there in full."""
        return self._find(root) is not None

    def load(self, root: Path) -> LoadedDataset:
        """Return names, images and labels, with a remark where the sizes are not the published ones."""
        found = self._find(root)
        if found is None:
            raise InputError(self._not_found(root))
        layout, folder = found
        return with_size_remarks(layout.read(folder), self.facts)

    def _find(self, root: Path) -> tuple[Layout, Path] | None:
        for layout in self.layouts:
            for folder in layout.folders:
                if all(_is_there(root / folder / need) for need in layout.needs):
                    return layout, root / folder
        return None

    def _not_found(self, root: Path) -> str:
        lines = [f"{self.facts.title} was not found below {str(root)!r}. Looked for:"]
        for layout in self.layouts:
            for folder in layout.folders:
                wanted = [(Path(folder) / need).as_posix() for need in layout.needs]
                missing = [name for name in wanted if not _is_there(root / name)]
                note = f" (only missing: {', '.join(missing)})" if len(missing) < len(wanted) else ""
                lines.append(f"{layout.title}: {', '.join(wanted)}{note}")
        text = "\n  - ".join(lines)
        if self.facts.urls:
            name = registry.name_of("datasets", type(self))
            text += f"\nDownload it with: captune list datasets --data {str(root)!r} --download {name}"
        return text


def _is_there(path: Path) -> bool:
    return is_file(path) or is_folder(path)


def with_size_remarks(data: LoadedDataset, facts: DatasetFacts) -> LoadedDataset:
    """Return the dataset with a remark for every size that is not the expected one."""
    sizes = (
        ("classes", len(data.names), facts.n_classes),
        ("images in the pool", len(data.pool), facts.n_pool),
        ("test images", len(data.test), facts.n_test),
    )
    remarks = [
        f"{facts.title} has {found} {what} here, expected {expected}: results cannot be compared with published ones."
        for what, found, expected in sizes
        if expected is not None and found != expected
    ]
    return dataclasses.replace(data, remarks=(*data.remarks, *remarks))
