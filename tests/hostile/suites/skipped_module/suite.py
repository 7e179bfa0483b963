import pytest

pytest.skip("none", allow_module_level=True)
