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

package errand

import (
	"context"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// declaredKinds returns the kinds that ChangeKinds declare and the API server serves.
func (l *leaving) declaredKinds(ctx context.Context) (kinds []schema.GroupVersionKind, err error) {
	var list v1alpha1.ChangeKindList
	if err := l.List(ctx, &list); err != nil {
		if meta.IsNoMatchError(err) {
			return nil, nil // an older version of the kinds is installed
		}
		if apierrors.IsForbidden(err) { // an older version of the role is installed
			l.say("objects of declared kinds are not listed: %v", err)
			return nil, nil
		}
		return nil, fmt.Errorf("list changekinds: %w", err)
	}
	for i := range list.Items {
		plural, group, _ := strings.Cut(list.Items[i].Name, ".")
		gvk, err := l.RESTMapper().KindFor(schema.GroupVersionResource{Group: group, Version: list.Items[i].Spec.Version, Resource: plural})
		switch {
		case meta.IsNoMatchError(err):
		case err != nil:
			return nil, fmt.Errorf("find the kind of %s: %w", list.Items[i].Name, err)
		default:
			kinds = append(kinds, gvk)
		}
	}
	return kinds, nil
}

// releaseKinds removes the operator's finalizer from all ChangeKinds, so that they can be deleted without it. After markLeft,
// the manager adds none until it starts again.
func (l *leaving) releaseKinds(ctx context.Context) error {
	var list v1alpha1.ChangeKindList
	if err := l.List(ctx, &list); err != nil {
		if meta.IsNoMatchError(err) {
			return nil
		}
		return fmt.Errorf("list changekinds: %w", err)
	}
	var failed []error
	for i := range list.Items {
		c, before := &list.Items[i], list.Items[i].DeepCopy()
		if controllerutil.RemoveFinalizer(c, v1alpha1.GiveBackFinalizer) {
			failed = append(failed, client.IgnoreNotFound(l.Patch(ctx, c, client.MergeFrom(before))))
		}
	}
	return errors.Join(failed...)
}
