"""DynO's figures: split execution over shaped links."""
