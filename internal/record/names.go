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

package record

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/traas-stack/altershield-operator/internal/workload"
)

// ReleaseName returns the name of the ChangeWorkload of one version of the workload.
func ReleaseName(w *workload.Workload, version string) string {
	return ChangeWorkloadName(w.Name, versionOfKind(w.GVK.GroupKind(), version))
}

// BatchName returns the name of the n-th batch, from 1, of one version of the workload.
func BatchName(w *workload.Workload, version string, n int32) string {
	return ChangePodName(w.Name, versionOfKind(w.GVK.GroupKind(), version), n)
}

// versionOfKind distinguishes, in names, versions of workloads of one name and of different kinds: {kind}-{version},
// with the beginning of a hash of the group after a kind outside the group apps. Versions of Deployments stay as they
// are.
func versionOfKind(gk schema.GroupKind, version string) string {
	kind := strings.ToLower(gk.Kind)
	switch {
	case gk.Group != appsv1.GroupName:
		sum := sha256.Sum256([]byte(gk.Group))
		return kind + "-" + hex.EncodeToString(sum[:])[:groupHashLength] + "-" + version
	case gk.Kind == "Deployment":
		return version
	default:
		return kind + "-" + version
	}
}

// ChangeWorkloadName returns the name of the ChangeWorkload of one version of a Deployment: {workload}--x--{version}.
func ChangeWorkloadName(workload, version string) string {
	suffix := nameSeparator + version
	return Shorten(workload, maxNameLength-len(suffix)) + suffix
}

// ChangePodName returns the name of the n-th batch, from 1, of one version of a Deployment: {changeworkload}--x--{n}.
func ChangePodName(workload, version string, n int32) string {
	suffix := fmt.Sprintf("%s%s%s%d", nameSeparator, version, nameSeparator, n)
	return Shorten(workload, maxNameLength-len(suffix)) + suffix
}

// WorkloadNameLabelValue returns the name of a workload as a label value.
func WorkloadNameLabelValue(workload string) string {
	return Shorten(workload, maxLabelLength)
}

// Shorten returns name if it fits, else cut at an alphanumeric and followed by 8 hexadecimal digits of its SHA-256, so
// two long names with the same beginning stay different.
func Shorten(name string, limit int) string {
	if len(name) <= limit {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	hash := hex.EncodeToString(sum[:])[:NameHashLength]
	cut := strings.TrimRight(name[:limit-NameHashLength-1], "-._")
	return cut + "-" + hash
}

// Parts of names and ids. NameHashLength is the number of hash digits that replace the cut part.
const (
	maxNameLength   = 253
	maxLabelLength  = 63
	nameSeparator   = "--x--"
	NameHashLength  = 8
	groupHashLength = 5
)
