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

import (
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// The largest number of images of a template, and the longest image in bytes.
const maxImages, maxImage = 8, 256

// Images returns the images of a pod template without duplicates, init containers first: at most 8,
// each cut to 256 bytes.
func Images(template map[string]any) []string {
	var images []string
	spec, _ := template["spec"].(map[string]any)
	for _, key := range []string{"initContainers", "containers"} {
		containers, _ := spec[key].([]any)
		for i := range containers {
			container, _ := containers[i].(map[string]any)
			image, _ := container["image"].(string)
			images = withImage(images, image)
		}
	}
	return images
}

func shortImages(all []string) (images []string) {
	for _, image := range all {
		images = withImage(images, image)
	}
	return images
}

func withImage(images []string, image string) []string {
	if image = short(image, maxImage); image == "" || len(images) == maxImages || slices.Contains(images, image) {
		return images
	}
	return append(images, image)
}

// imagesOf reads the images from a trimmed object, or from the template of an object that is not
// trimmed.
func imagesOf(u *unstructured.Unstructured) []string {
	if images, ok, err := unstructured.NestedStringSlice(u.Object, trimmedImagesPath...); ok && err == nil {
		return images
	}
	template, _, _ := unstructured.NestedFieldNoCopy(u.Object, templatePath...)
	content, _ := template.(map[string]any)
	return Images(content)
}
