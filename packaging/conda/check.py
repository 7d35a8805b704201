#!/usr/bin/env python3
"""Has rattler-build's own parser read the recipe and render it for each platform, which finds what
is no recipe: `pip install py-rattler-build`, then packaging/conda/check.py. conda's channels are
not asked: nothing is built."""

import pathlib

import rattler_build

VARIANTS = """
python: ["3.12"]
cxx_compiler: [gxx]
c_stdlib: [sysroot]
c_stdlib_version: ["2.28"]
"""


def main() -> None:
    text = pathlib.Path(__file__).with_name("recipe.yaml").read_text()
    recipe = rattler_build.Stage0Recipe.from_yaml(text)
    for platform in ("linux-64", "linux-aarch64"):
        variants = rattler_build.VariantConfig.from_yaml(VARIANTS)
        config = rattler_build.RenderConfig(
            platform=rattler_build.PlatformConfig(target_platform=platform)
        )
        (rendered,) = recipe.render(variants, config)
        package = rendered.recipe.package
        print(f"{platform}: {package.name} {package.version}")


if __name__ == "__main__":
    main()
