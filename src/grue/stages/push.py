"""`grue push`: upload an exported folder to a model hub. Otherwise only chat models and trackers are sent anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from grue.config import read_config
from grue.errors import ConfigError, DataError, GrueError, first_line
from grue.models.sources import is_local
from grue.progress import Progress
from grue.stages.trained import EXPORT_SETTINGS, read_about
from grue.storage.files import files_below

# an adapter left beside merged weights would be applied to them once more
_OF_AN_EXPORT = ["*.safetensors", "*.json", "*.jsonl", "*.jinja", "grue.yaml"]

_NAMED = 8  # files in a warning


class PushError(GrueError, RuntimeError):
    """A hub could not be reached, or refused."""


def push(folder: Path, repository: str, say: Progress, *, public: bool = False) -> str:
    """Upload what the export wrote into `folder` as `repository` (OWNER/NAME), in place of an earlier export there.

    Returns the address. A new repository is private unless `public`; PushError if it exists already and is public.

    The token is the one that `hf auth login` has stored, or HF_TOKEN.
    """
    folder = Path(folder)
    about = read_about(folder)
    if not {"probe", "files"} <= about.keys():
        raise DataError(
            f"{folder} was never checked, or by an older grue", hint="export the run again: grue export RUN"
        )
    if about["what"] == "adapter" and is_local(base := read_config(folder / EXPORT_SETTINGS).model.name):
        raise ConfigError(
            f"the adapter in {folder} names its base by a folder, {base}, which others do not have",
            hint="grue export RUN --what merged makes a model that stands alone",
        )
    if repository.count("/") != 1 or not all(repository.split("/")):
        raise ConfigError(f"{repository!r} is not a repository name", hint="OWNER/NAME, for example me/cooking16-ppo")
    wanted = _of_the_export(folder, about, say)
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError, OfflineModeIsEnabled

    api = HfApi()
    try:
        address = api.create_repo(repository, private=not public, exist_ok=True)
        if not public and not api.repo_info(repository).private:
            raise PushError(f"{repository} already exists and is public", hint="give --public, or another name")
        api.upload_folder(
            repo_id=repository,
            folder_path=folder,
            allow_patterns=wanted,
            commit_message=f"{about['policy']}, {about['what']} (grue)",
            delete_patterns=_OF_AN_EXPORT,
        )
    except PushError:
        raise
    except (LocalTokenNotFoundError, HFValidationError, OfflineModeIsEnabled) as error:
        hints = {HFValidationError: "a repository is OWNER/NAME", OfflineModeIsEnabled: "unset HF_HUB_OFFLINE"}
        hint = hints.get(type(error), "log in first: hf auth login")
        raise PushError(f"cannot push to {repository}: {error}", hint=hint) from error
    except Exception as error:
        # the hub's client uses httpx, httpx2 or requests, depending on its version
        client = type(error).__module__.partition(".")[0] in ("httpx", "httpx2", "httpcore", "httpcore2", "requests")
        # a hub, or something in between such as a proxy, may answer with something other than JSON
        if not client and not isinstance(error, HfHubHTTPError | OSError | ValueError):
            raise
        said = getattr(error, "server_message", None)  # why a hub refuses
        reason = first_line(error)
        if said and said not in reason:
            reason += f" ({said})"
        raise PushError(
            f"cannot push to {repository}: {reason}",
            hint="check the network, and that your token may write to it: hf auth login",
        ) from error
    return str(address)


def _of_the_export(folder: Path, about: dict[str, Any], say: Progress) -> list[str]:
    """The files that the export wrote. Others, which may be private, are named and left out."""
    there = files_below(folder)
    others = [file for file in there if file not in about["files"] and not file.startswith((".git/", ".cache/"))]
    if others:
        more = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
        say.warn(f"not uploaded, as the export did not write it: {', '.join(others[:_NAMED])}{more}")
    return [file for file in there if file in about["files"]]
