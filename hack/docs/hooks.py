# Copyright The AlterShield Authors.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Hooks of MkDocs: a link that leaves docs/ leads to the file on GitHub."""

import posixpath
import re

LINK = re.compile(r"(\]\()((?:\.\./)+[^)\s]+)(\))")


def on_page_markdown(markdown, page, config, files):
    """Rewrites links of a page to files of the repository that are no pages."""

    def rewrite(match):
        directory = posixpath.dirname("docs/" + page.file.src_uri)
        path = posixpath.normpath(posixpath.join(directory, match[2]))
        if path.startswith("docs/"):
            return match[0]
        return f"{match[1]}{config.repo_url.rstrip('/')}/blob/main/{path}{match[3]}"

    return LINK.sub(rewrite, markdown)
