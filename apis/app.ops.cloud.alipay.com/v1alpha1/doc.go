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

// Package v1alpha1 has the kinds of the operator: ChangeWorkload (one release of one version), ChangePod (one batch of its
// pods), DefensePolicy (checks of releases) and OpsConfigInfo (one setting, which takes effect without a restart). It also
// has the keys of the labels and annotations that the operator and users write on workloads.
//
// +kubebuilder:object:generate=true
// +groupName=app.ops.cloud.alipay.com
package v1alpha1
