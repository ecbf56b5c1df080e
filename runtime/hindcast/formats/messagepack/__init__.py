"""The layout "Episodes / MessagePack", as RLlib writes episodes."""
