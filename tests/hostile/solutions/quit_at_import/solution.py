quit()  # noqa: PLR1722
