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

package workload

import "slices"

// Images lists what the containers of a pod template run, each image once, those
// of init containers first.
func Images(template map[string]any) []string {
	var images []string
	spec, _ := template["spec"].(map[string]any)
	for _, key := range []string{"initContainers", "containers"} {
		containers, _ := spec[key].([]any)
		for i := range containers {
			container, _ := containers[i].(map[string]any)
			if image, _ := container["image"].(string); image != "" && !slices.Contains(images, image) {
				images = append(images, image)
			}
		}
	}
	return images
}
