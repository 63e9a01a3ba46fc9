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

// Package observer watches a control plane while tests run, and reports which of
// the operator's invariants were violated, by which version of which object.
//
// It is independent of the operator: both share the API types, but no decisions.
// The observer has its own watches, and reads the writer of each version from the
// audit log of the API server. It puts both into the order of resource versions,
// and judges every version of an object against its previous version and the
// state of the whole cluster at that moment. The judgement is a pure function of
// that history.
//
// A history with a hole is not judged: if a watch cannot be resumed, everything
// is listed again. Gaps returns each hole, each version whose writer is unknown,
// and the versions that were not judged by the end.
package observer
