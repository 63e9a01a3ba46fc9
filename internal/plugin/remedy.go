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

package plugin

import (
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// remedied is an error with what to do about it.
type remedied struct {
	err error
	do  string
}

// remedy says what to do about an error.
func remedy(err error, do string) error { return &remedied{err: err, do: do} }

// Error says what is wrong, and what to do.
func (r *remedied) Error() string { return r.err.Error() + r.tail() }

func (r *remedied) tail() string { return "\n  " + r.do }

// Unwrap is what is wrong.
func (r *remedied) Unwrap() error { return r.err }

// Explained adds to what an API server or a network says what to do about it, where no
// command has done so.
func Explained(err error) error {
	var known *remedied
	switch {
	case errors.As(err, &known):
		return err
	case meta.IsNoMatchError(err):
		return remedy(err, "the operator's kinds are not installed in this cluster, or it is another cluster: see kubectl altershield check")
	case apierrors.IsForbidden(err):
		return remedy(err, "your user lacks this right here; see the table of rights in docs/operations.md, or ask with kubectl auth can-i")
	case apierrors.IsUnauthorized(err):
		return remedy(err, "log in to the cluster again, or choose another context with --context")
	case utilnet.IsConnectionRefused(err), utilnet.IsTimeout(err):
		return remedy(err, "the API server cannot be reached: see kubectl cluster-info, and choose another context with --context")
	default:
		return err
	}
}
