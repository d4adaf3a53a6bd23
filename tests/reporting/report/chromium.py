"""A headless chromium, driven by selenium."""

import json
import shutil
from dataclasses import dataclass


@dataclass
class Browser:
    """A headless chromium with what it logged and asked for."""

    driver: object

    def open(self, url, *, dark=False, width=1280, height=900):
        self.driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia",
            {
                "features": [
                    {
                        "name": "prefers-color-scheme",
                        "value": "dark" if dark else "light",
                    }
                ]
            },
        )
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {
                "width": width,
                "height": height,
                "deviceScaleFactor": 1,
                "mobile": width < 600,
            },
        )
        # Leave the page before: one that polls may still ask or complain.
        self.driver.get("about:blank")
        self.driver.get_log("browser")
        self.driver.get_log("performance")
        self.driver.get(url)

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def complaints(self):
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self):
        """Return the addresses of all requests since `open`."""
        messages = (
            json.loads(entry["message"])["message"]
            for entry in self.driver.get_log("performance")
        )
        return [
            message["params"]["request"]["url"]
            for message in messages
            if message["method"] == "Network.requestWillBeSent"
        ]

    def wait(self, script, *arguments, timeout=10):
        from selenium.webdriver.support.ui import WebDriverWait

        return WebDriverWait(self.driver, timeout, poll_frequency=0.05).until(
            lambda driver: driver.execute_script(script, *arguments)
        )


def start_browser(profile):
    """Return a selenium driver of Debian's chromium."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        f"--user-data-dir={profile}",
    ):
        options.add_argument(argument)
    options.set_capability(
        "goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"}
    )
    return webdriver.Chrome(
        options=options, service=Service(shutil.which("chromedriver"))
    )
