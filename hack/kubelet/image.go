/*
Copyright The AlterShield Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package kubelet

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// OperatorImage is the operator's image as the Dockerfile of the repository at root
// makes it, with the binary that is built already. Without a container engine this
// is as near as one gets to it.
func OperatorImage(root, name string) (Image, error) {
	data, err := os.ReadFile(filepath.Join(root, "Dockerfile"))
	if err != nil {
		return Image{}, err
	}
	image, err := imageOf(string(data), filepath.Join(root, "bin", "manager"))
	image.Name = name
	return image, err
}

// imageOf reads the last stage of a Dockerfile. The only file it may copy is
// binary.
func imageOf(dockerfile, binary string) (Image, error) {
	image := Image{Files: map[string]string{}}
	for line := range strings.Lines(dockerfile) {
		instruction, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch fields := strings.Fields(rest); instruction {
		case "FROM":
			image = Image{Files: map[string]string{}}
		case "COPY":
			if len(fields) == 3 && strings.HasPrefix(fields[0], "--from=") {
				image.Files[fields[2]] = binary
			}
		case "USER":
			uid, gid, _ := strings.Cut(rest, ":")
			var err error
			if image.UID, err = strconv.ParseInt(uid, 10, 32); err != nil {
				return image, fmt.Errorf("the Dockerfile: USER: %w", err)
			}
			if image.GID, err = strconv.ParseInt(gid, 10, 32); err != nil {
				return image, fmt.Errorf("the Dockerfile: USER: %w", err)
			}
		case "ENTRYPOINT":
			if err := json.Unmarshal([]byte(rest), &image.Entrypoint); err != nil {
				return image, fmt.Errorf("the Dockerfile: ENTRYPOINT: %w", err)
			}
		}
	}
	if len(image.Files) != 1 || len(image.Entrypoint) == 0 {
		return image, fmt.Errorf("the Dockerfile: want a last stage with one COPY and an ENTRYPOINT, have %v and %v", image.Files, image.Entrypoint)
	}
	return image, nil
}
