"""Arrays as cells of Arrow's tables; the layout "Episodes / Arrow"."""
