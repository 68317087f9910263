"""Class names stand in the order from which the published seen classes were drawn."""

from __future__ import annotations

from pathlib import Path

import dataset_copies as copies
import pytest

from captune.benchmark.datasets.base import LoadedDataset
from captune.benchmark.splits import draw_seen_classes
from captune.core import registry

SEEN = {  # the first seen classes of published splits (BatsResearch/menghini-neurips23-code, data/data_splits)
    ("resisc45", 500): ("beach", "palace", "roundabout", "railway station", "railway"),
    ("resisc45", 0): ("railway station", "snowberg", "palace", "beach", "commercial area"),
    ("resisc45", 200): ("railway", "parking lot", "wetland", "meadow", "harbor"),
    ("dtd", 500): ("knitted", "pitted", "studded", "bumpy", "spiralled"),
    ("dtd", 0): ("pitted", "scaly", "polka-dotted", "bumpy", "honeycombed"),
    ("dtd", 200): ("pitted", "pleated", "polka-dotted", "sprinkled", "grooved"),
    ("fgvc_aircraft", 500): ("Tu-134", "Spitfire", "Challenger 600", "737-700", "F-A-18"),
    ("fgvc_aircraft", 0): ("A321", "MD-80", "737-200", "DC-8", "Falcon 900"),
    ("fgvc_aircraft", 200): ("An-12", "737-200", "F-16A-B", "BAE 146-200", "MD-80"),
    ("flowers102", 500): ("canna lily", "petunia", "silverbush", "prince of wales feathers", "pincushion flower"),
    ("flowers102", 0): ("prince of wales feathers", "air plant", "canterbury bells", "bishop of llandaff", "bee balm"),
    ("flowers102", 200): ("oxeye daisy", "canterbury bells", "clematis", "siam tulip", "cape flower"),
}
RESISC = (
    "airplane airport baseball_diamond basketball_court beach bridge chaparral church circular_farmland cloud "
    "commercial_area dense_residential desert forest freeway golf_course ground_track_field harbor industrial_area "
    "intersection island lake meadow medium_residential mobile_home_park mountain overpass palace parking_lot railway "
    "railway_station rectangular_farmland river roundabout runway sea_ice ship snowberg sparse_residential stadium "
    "storage_tank tennis_court terrace thermal_power_station wetland"
)
DTD = (
    "banded blotchy braided bubbly bumpy chequered cobwebbed cracked crosshatched crystalline dotted fibrous flecked "
    "freckled frilly gauzy grid grooved honeycombed interlaced knitted lacelike lined marbled matted meshed paisley "
    "perforated pitted pleated polka-dotted porous potholed scaly smeared spiralled sprinkled stained stratified "
    "striped studded swirly veined waffled woven wrinkled zigzagged"
)
VARIANTS = (
    "707-320,727-200,737-200,737-300,737-400,737-500,737-600,737-700,737-800,737-900,747-100,"
    "747-200,747-300,747-400,757-200,757-300,767-200,767-300,767-400,777-200,777-300,A300B4,"
    "A310,A318,A319,A320,A321,A330-200,A330-300,A340-200,A340-300,A340-500,A340-600,A380,"
    "ATR-42,ATR-72,An-12,BAE 146-200,BAE 146-300,BAE-125,Beechcraft 1900,Boeing 717,C-130,C-47,"
    "CRJ-200,CRJ-700,CRJ-900,Cessna 172,Cessna 208,Cessna 525,Cessna 560,Challenger 600,DC-10,"
    "DC-3,DC-6,DC-8,DC-9-30,DH-82,DHC-1,DHC-6,DHC-8-100,DHC-8-300,DR-400,Dornier 328,E-170,"
    "E-190,E-195,EMB-120,ERJ 135,ERJ 145,Embraer Legacy 600,Eurofighter Typhoon,F-16A/B,F/A-18,"
    "Falcon 2000,Falcon 900,Fokker 100,Fokker 50,Fokker 70,Global Express,Gulfstream IV,"
    "Gulfstream V,Hawk T1,Il-76,L-1011,MD-11,MD-80,MD-87,MD-90,Metroliner,Model B200,PA-28,"
    "SR-20,Saab 2000,Saab 340,Spitfire,Tornado,Tu-134,Tu-154,Yak-42"
)


def whole_vocabulary(name: str, root: Path) -> LoadedDataset:
    """Return a dataset with all of its classes and few images."""
    if name == "resisc45":
        for folder in RESISC.split():
            for i in range(5):
                copies.write_image(root / "NWPU-RESISC45" / folder / f"{i}.jpg")
    elif name == "dtd":
        images = [f"{texture}/{texture}_0001.jpg" for texture in DTD.split()]
        for image in images:
            copies.write_image(root / "dtd" / "images" / image)
        for part in ("train", "val", "test"):
            copies.write_lines(root / "dtd" / "labels" / f"{part}1.txt", images[::-1])
    elif name == "fgvc_aircraft":
        copies.aircraft(root)
        copies.write_lines(root / "fgvc-aircraft-2013b/data/variants.txt", VARIANTS.split(","))
        for part in ("train", "val", "test"):
            path = root / f"fgvc-aircraft-2013b/data/images_variant_{part}.txt"
            copies.write_lines(path, [f"0001000 {variant}" for variant in VARIANTS.split(",")])
    else:
        copies.flowers_official(root)
    return registry.load("datasets", name)().load(root)


@pytest.mark.parametrize(("name", "seed"), SEEN)
def test_class_order_gives_the_published_seen_classes(name: str, seed: int, tmp_path: Path) -> None:
    data = whole_vocabulary(name, tmp_path)
    assert len(data.names) == registry.load("datasets", name).facts.n_classes
    seen = draw_seen_classes(len(data.names), 0.62, seed)
    assert tuple(data.names[c] for c in seen[:5]) == SEEN[name, seed]
