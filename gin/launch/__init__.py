"""Starting ranks on this host: `gin run` for programs, `gin.spawn` for functions."""
