"""The HTML page in a real browser: no errors, no requests, every plot with its marks, and values in the tooltip."""

import json
import os
import shutil
from statistics import mean, pstdev

import pytest
from helpers.page import METHODS, Read, evil, folder, numbers, of, section

from focusfl.report.html.page import page
from focusfl.report.section import Section
from focusfl.run.folder import from_folder

PRINT = "dispatchEvent(new Event('beforeprint'))"


@pytest.fixture(scope="module")
def browser():
    """Debian's chromium, headless. If it is not installed the tests are skipped, except in CI."""
    places = shutil.which("chromium"), shutil.which("chromedriver")
    if None in places:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("apt-get install chromium chromium-driver")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(word)
    options.binary_location = places[0]
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(places[1]))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Classification, regression, and a section of two parts, the second of them closed."""
    path = tmp_path_factory.mktemp("page") / "page.html"
    rows = [row | {"part": f"k = {k}"} for k in (1, 3) for row in section().rows]
    sections = [section(), from_folder(folder("synthetic")), Section("parts", "Two parts", "paper", rows)]
    path.write_text(page("Small", sections), encoding="utf-8")
    return path


def shown(browser, path, scheme="light", width=1280):
    """In a window so high that all of it is in view; every plot that is not in a closed part is drawn."""
    from selenium.webdriver.support.ui import WebDriverWait

    paint(browser, scheme)
    size = {"width": width, "height": 16000, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    for kind in ("browser", "performance"):
        browser.get_log(kind)
    browser.get(path.as_uri())
    drawn = "p => p.closest('details:not([open])') || p.querySelector('.panel svg')"
    WebDriverWait(browser, 30).until(lambda b: b.execute_script(f"return {every('.plot')}.every({drawn})"))


def paint(browser, scheme):
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def every(selector):
    return f"[...document.querySelectorAll({json.dumps(selector)})]"


def attributes(browser, selector, name):
    return [
        float(v) for v in browser.execute_script(f"return {every(selector)}.map(e => e.getAttribute('{name}'))")
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_loads_without_errors_and_fetches_nothing(browser, written, scheme):
    shown(browser, written, scheme)
    assert browser.get_log("browser") == []
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = {e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"}
    assert asked - {"data:,"} == {written.as_uri()}
    ground = browser.execute_script("return getComputedStyle(document.documentElement).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") == (scheme == "light")


def test_colours_follow_when_the_scheme_changes(browser, written):
    looks = {".bar": "fill", ".panel .line": "stroke", ".labels .panel [class=k0]": "fill", ".panel text": "fill"}
    seen = []
    shown(browser, written, "light")
    for scheme in ("light", "dark"):
        paint(browser, scheme)
        ask = "return getComputedStyle(document.querySelector(arguments[0]))[arguments[1]]"
        seen.append([browser.execute_script(ask, *look) for look in looks.items()])
    assert all(a != b and "rgb" in a and "rgb" in b for a, b in zip(*seen, strict=True))


def test_the_tables_are_those_of_the_page(browser, written):
    shown(browser, written)
    cells = f"return {every('table')}.map(t => [...t.rows].map(r => [...r.cells].map(c => c.textContent)))"
    assert browser.execute_script(cells) == Read(written.read_text("utf-8")).tables


def test_bars_are_the_excess_risks(browser, written):
    shown(browser, written)
    heights = attributes(browser, "section:first-child .bar", "height")
    risks = [abs(mean(r)) for m in METHODS for r in zip(*of(m, "excess_risk"), strict=True)]
    unit = max(heights) / max(risks)
    assert len(heights) == len(METHODS) * 10
    assert heights == pytest.approx([max(r * unit, 0.75) for r in risks], abs=0.05)


def test_lines_have_one_point_per_round_and_labels_one_cell_per_agent_and_round(browser, written):
    shown(browser, written)
    paths = browser.execute_script(
        f"return {every('section:first-child .panel .line')}.map(p => p.getAttribute('d'))"
    )
    assert len(paths) == 3 * len(METHODS)  # accuracy, loss, agnostic loss
    assert all(path.count("L") == 5 for path in paths)
    assert len(browser.find_elements("css selector", "section:first-child .legend button")) == len(METHODS)
    assert len(browser.find_elements("css selector", "section:first-child .labels .panel")) == 2  # seeds
    first = "section:first-child .labels .panel:first-child .cell"
    x, y, width, height = (attributes(browser, first, name) for name in ("x", "y", "width", "height"))
    for row in sorted(set(y)):
        assert sum(w for w, at in zip(width, y, strict=True) if at == row) == pytest.approx(
            max(a + b for a, b in zip(x, width, strict=True)) - min(x)  # from end to end, nothing left white
        )
    assert len(set(y)) == 10 and len(set(height)) == 1


def test_the_tooltip_shows_the_value_under_the_pointer(browser, written):
    from selenium.webdriver import ActionChains

    def tip(selector, right=0.0):
        node = browser.find_element("css selector", selector)
        ActionChains(browser).move_to_element_with_offset(node, int(right * node.rect["width"] / 2), 0).perform()
        return browser.find_element("id", "tip").text.splitlines()

    shown(browser, written)
    name, who, risk, over = tip(".bars .panel:first-child .bar:nth-last-of-type(1)")
    assert (name, who) == ("FOCUS", "agent 9, true cluster 2") and over.endswith("2 seeds")
    values = [risks[9] for risks in of("focus", "excess_risk")]
    assert [v for v, _ in numbers(risk)] == pytest.approx([mean(values), pstdev(values)], rel=1e-3)

    head, *said = tip(".lines .panel:first-child svg", right=0.9)
    ends = {m: mean(h["avg_acc"][-1] for h in of(m, "history")) for m in METHODS}
    assert head == "accuracy, round 6"
    assert {line.split()[0].lower(): float(line.split()[1]) for line in said} == pytest.approx(ends, abs=1e-4)

    head, who, pi = tip(".labels .panel:first-child .cell")
    kept = of("focus", "history")[0]["pi"]
    assert who == "agent 0, true cluster 0"
    assert [float(p) for p in pi.split()[1:]] == kept["pi"][kept["round"].index(int(head.split()[1]))][0]


def test_a_closed_part_is_drawn_when_it_is_opened_or_printed(browser, written):
    from selenium.webdriver.support.ui import WebDriverWait

    blank = f"return {every('.plot')}.filter(p => !p.firstChild).length"
    for how in ("document.querySelector('details:not([open]) > summary ~ h3').parentNode.open = true", PRINT):
        shown(browser, written)
        assert browser.execute_script(blank) == 3  # bars, lines and labels
        browser.execute_script(how)
        WebDriverWait(browser, 30).until(lambda b: b.execute_script(blank) == 0)
        assert browser.get_log("browser") == []


def test_a_menu_redraws_the_plot(browser, written):
    from selenium.webdriver.support.ui import Select

    shown(browser, written)
    before = attributes(browser, ".bar", "height")
    Select(browser.find_element("css selector", ".bars select")).select_by_visible_text("square root")
    after = attributes(browser, ".bar", "height")
    assert before != after and len(before) == len(after)


def test_on_a_phone_nothing_is_wider_than_the_screen(browser, written):
    shown(browser, written, width=390)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
    rights = browser.execute_script(f"return {every('.panel')}.map(p => p.getBoundingClientRect().right)")
    assert max(rights) <= 390 and browser.get_log("browser") == []


def test_data_stays_text(browser, tmp_path):
    path = tmp_path / "evil.html"
    path.write_text(page("Title", [evil()]), encoding="utf-8")
    shown(browser, path)
    assert browser.title == "Title" and browser.get_log("browser") == []
    assert browser.find_elements("css selector", "img") == []
