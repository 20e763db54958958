"""What comes back beside observations: infos, frames, notes of a server."""
